"""Real servers, gateways and fleets of them for trials and tests, and the streams that are sent to them."""
