"""`python -m penstock_gateway`."""

from penstock_gateway.main import main

raise SystemExit(main())
