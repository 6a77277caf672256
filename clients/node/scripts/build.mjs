/** Builds the package, as CommonJS, which `import` and `require` load once. */

import { execFileSync } from "node:child_process";
import { readFileSync, rmSync, writeFileSync } from "node:fs";

process.chdir(new URL("..", import.meta.url).pathname);

// As a module, because there is no way to find a file beside a module that both kinds share.
const source = readFileSync("../fallback.lua", "utf8");
writeFileSync(
  "src/transport/fallback.ts",
  `/** clients/fallback.lua, copied by scripts/build.mjs. */\nexport const FALLBACK = ${JSON.stringify(source)};\n`,
);

rmSync("dist", { recursive: true, force: true });
execFileSync("node_modules/.bin/tsc", ["-p", "tsconfig.json"], { stdio: "inherit" });
writeFileSync("dist/package.json", '{ "type": "commonjs" }\n');
