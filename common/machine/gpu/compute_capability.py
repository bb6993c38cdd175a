"""Prints the compute capability of the first GPU that answers, such as 90, or nothing.

It asks the driver itself, because nvidia-smi may be missing although programs run, and the reverse.
"""

import ctypes

COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76


def capability():
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
