"""`python -m penstock_client.cli`."""

import sys

from penstock_client.cli.main import main

sys.exit(main())
