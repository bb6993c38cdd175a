"""Prints the first GPU's compute capability, such as 90 for 9.0, or an empty line if none answers.

The build and the scripts run it. It asks the driver itself, because nvidia-smi may be missing where
programs run, and present where they do not.
"""

import ctypes

COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76


def capability():
    """Returns the capability as text without a point, or "" if no GPU or driver answers."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    major, minor = ctypes.c_int(), ctypes.c_int()
    if (cuda.cuInit(0) or
            cuda.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, 0) or
            cuda.cuDeviceGetAttribute(ctypes.byref(minor), COMPUTE_CAPABILITY_MINOR, 0)):
        return ""
    return f"{major.value}{minor.value}"


if __name__ == "__main__":
    print(capability())
