"""Read what a page has inside."""

import base64
import json
import re

import numpy as np


def script(page: str, name: str) -> str:
    [content] = re.findall(rf'<script type="[^"]+" id="{name}">(.*?)</script>', page, re.DOTALL)
    return content


def read_page(page: str) -> tuple[dict, np.ndarray]:
    data = json.loads(script(page, "page-data"))
    return data, np.frombuffer(base64.b64decode(script(page, "page-numbers")), dtype="<f4")
