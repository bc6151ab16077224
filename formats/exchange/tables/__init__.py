"""Tables, and what has rows like one."""
