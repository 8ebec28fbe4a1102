"""Examples of the library run as they stand in README and on its page."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_library_example_prints_the_words():
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [example for example in examples if "StreamingRecognizer" in example]
    run = subprocess.run([sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[-1].startswith("enter one oh four [('enter', ")
    assert lines[:-1] == sorted(lines[:-1], key=len), "text only grows"


def test_the_examples_of_the_library_page_print_what_is_below_them():
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL)
    assert len(examples) == page.count("```python") > 2
    program = "import sys\nfor example in sys.argv[1:]: exec(example, {})"
    command = [sys.executable, "-c", program, *(example for example, _ in examples)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout == "".join(printed for _, printed in examples), run.stderr
