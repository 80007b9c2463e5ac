#!/bin/sh
# Build src/kinfolk/reports/static/echarts.min.js from the versions in package-lock.json.
set -eu
cd "$(dirname "$0")"
out=../../src/kinfolk/reports/static
npm ci --no-audit --no-fund
npx esbuild echarts.js --bundle --minify --format=iife --target=es2020 --legal-comments=none \
  --banner:js="/*! Apache ECharts 6.1.0, Apache-2.0, with zrender, BSD-3-Clause: see ECHARTS-LICENSE.txt */" \
  --outfile="$out/echarts.min.js"
{
  cat node_modules/echarts/NOTICE
  printf '\n\n--- echarts: LICENSE ---\n\n'
  cat node_modules/echarts/LICENSE
  printf '\n\n--- zrender: LICENSE ---\n\n'
  cat node_modules/zrender/LICENSE
  printf '\n\n--- tslib: LICENSE ---\n\n'
  cat node_modules/tslib/LICENSE.txt
} >"$out/ECHARTS-LICENSE.txt"
cat >"$out/echarts.json" <<END
{
  "echarts": "$(node -p 'require("echarts/package.json").version')",
  "zrender": "$(node -p 'require("zrender/package.json").version')",
  "esbuild": "$(node -p 'require("esbuild/package.json").version')",
  "sha256": "$(sha256sum "$out/echarts.min.js" | cut -d ' ' -f 1)"
}
END
