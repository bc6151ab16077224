"""What lies in repositories, for callers who may read it: functions without HTTP."""
