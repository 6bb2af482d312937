"""Show how often each page is linked to, by whom, and the broken links."""

from __future__ import annotations

import percola
from graph import SCHEMA, broken, in_links, linking, targets

if __name__ == "__main__":
    with percola.open("./web", SCHEMA) as repo, repo.snapshot() as now:
        for page, found in in_links.groups(now):
            print(f"{page}: {found.count} from {', '.join(sorted(linking.owners(now, page)))}")
        for row in now.scan(broken):
            print(f"broken on {row.key}: {', '.join(row[targets])}")
