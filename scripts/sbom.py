#!/usr/bin/env python3
"""sbom.py EPOCH_S FILE   Makes the SBOM of cargo-cyclonedx reproducible: derives its serial number from its contents, and
sets its time to EPOCH_S. Replaces the path of the project, which is the current folder."""

import datetime
import json
import os
import sys
import uuid

epoch_s, path = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    bill = json.load(file)
here = f"file://{os.getcwd()}"
bill["serialNumber"] = ""
bill["metadata"]["timestamp"] = datetime.datetime.fromtimestamp(int(epoch_s), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
text = json.dumps(bill, indent=2, sort_keys=True).replace(here, "file:///project")
serial = uuid.uuid5(uuid.NAMESPACE_URL, text)
print(text.replace('"serialNumber": ""', f'"serialNumber": "urn:uuid:{serial}"'))
