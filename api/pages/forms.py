"""Fields of forms that several pages have."""

from __future__ import annotations

from typing import Annotated

from fastapi import Form
from pydantic import AfterValidator


def plain_lines(text: str) -> str:
    """What a box of several lines held: browsers send its lines with CR and LF."""
    return text.replace("\r\n", "\n")


Text = Annotated[str, Form(max_length=65_536), AfterValidator(plain_lines)]
