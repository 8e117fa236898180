"""An agent that lives: it runs the hooks it is told to, one a line, until it is killed."""

from __future__ import annotations

import json
import subprocess
import sys

for line in sys.stdin:
    command, content = json.loads(line)
    done = subprocess.run(command, input=content.encode(), capture_output=True, check=False)
    print(json.dumps([done.returncode, done.stdout.decode(), done.stderr.decode()]), flush=True)
