"""`python -m penstock_gateway`."""

from penstock_gateway.process.main import main

raise SystemExit(main())
