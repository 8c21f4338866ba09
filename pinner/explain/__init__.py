"""Why two things differ, and whether it matters: diff, compare, reproduce."""
