"""What tests of the scripts make up."""


def listed(rung, variant, device="sim", **changes):
    """A line of a program's --list."""
    return {"rung": rung, "variant": variant, "device": device, "default": False,
            "by_name_only": False, "idea": "an idea", "summary": "a step", "colour": "#123456", "backward": False,
            "deterministic": False, "needs": "8.0", "exact_architecture": False, "tiles": [],
            "grid_limit": [0, 0], "settings": [], **changes}
