"""The Python of README.md runs as it is there. If this fails, the first program
that a user copies does not work."""

import re
from pathlib import Path

from conftest import sql

README = Path(__file__).parent.parent / "README.md"


def test_readme(capsys):
    sql("CREATE TABLE orders (item text); CREATE TABLE payments (receipt text)")
    sql("GRANT ALL ON orders, payments TO PUBLIC")
    code = "".join(re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S))
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert capsys.readouterr().out == "completed {'item': 'hat'} True\n"
    assert sql("SELECT item FROM orders ORDER BY item") == [("hat",), ("scarf",)]
    assert sql("SELECT receipt FROM payments") == [("ch_1",)]
    assert names["status"] == 401
    names["pool"].close()
