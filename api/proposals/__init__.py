"""Merge requests as the service offers them: who may propose, say, approve, report and merge."""
