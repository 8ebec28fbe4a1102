#!/bin/sh
# For the build stages of the Dockerfile: a virtual environment for the image, without pip, and a second one that has
# pip and stays behind. The path file is there because Triton's Python stub ignores PYTHONPATH.
set -eu
python3 -m venv /opt/pip
python3 -m venv --without-pip /opt/penstock/venv
site_packages=$(/opt/penstock/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo /opt/penstock/program/packages > "$site_packages/penstock.pth"
