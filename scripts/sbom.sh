#!/usr/bin/env bash
# `make sbom`: build/sbom/NAME.json for each lock file, and known vulnerabilities where pip-audit finds a source of
# advisories. Exit status 1 if there are any.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/sbom
status=0
for lock in locks/*.txt; do # pins.txt has torch, whose builds differ in their hashes
    name=$(basename "$lock" .txt)
    cyclonedx-py requirements "$lock" --of JSON -o "build/sbom/$name.json"
    if found=$(pip-audit --strict --disable-pip --no-deps --requirement "$lock" 2>&1); then
        echo "$name: $(grep -c bom-ref "build/sbom/$name.json") entries; no known vulnerability"
    elif grep -qE "could not be audited|Could not be audited|not found on|Connection|Max retries" <<<"$found"; then
        echo "$name: $(grep -c bom-ref "build/sbom/$name.json") entries; scan not run: no source of advisories"
    else
        echo "$name: $found"
        status=1
    fi
done
exit $status
