#!/bin/sh
# Fetches the graph libraries of the report page, by name and version, with their licences.
# Only maintainers run it (`make vendor`); the files are checked in and shipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
npm install --silent --ignore-scripts --no-save cytoscape@3.34.4 @dagrejs/dagre@3.1.3
cp node_modules/cytoscape/dist/cytoscape.min.js "$here/cytoscape.min.js"
cp node_modules/cytoscape/LICENSE "$here/cytoscape.LICENSE.txt"
dagre=node_modules/@dagrejs/dagre
cp $dagre/LICENSE "$here/dagre.LICENSE.txt"
{
    printf '/*! @dagrejs/dagre\n'
    cat $dagre/LICENSE
    printf '*/\n'
    grep -v -e '^//# sourceMappingURL=' -e 'LEGAL.txt \*/$' $dagre/dist/dagre.min.js
} > "$here/dagre.min.js"
