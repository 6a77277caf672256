/** The package by `require`: every entry, which is the one that `import` loads. */

const assert = require("node:assert/strict");
const { test } = require("node:test");

const { exports: entries, typesVersions } = require("../package.json");

for (const entry of Object.keys(entries)) {
  const name = `tokenbucket-redis${entry.slice(1)}`;
  test(`require("${name}") offers what import does`, async () => {
    const imported = await import(name);
    assert.equal(imported.default, require(name));
    for (const [key, value] of Object.entries(require(name))) assert.equal(imported[key], value, key);
  });
}

test("compilers that do not know `exports` find the types of every entry", () => {
  const names = Object.keys(entries).map((entry) => entry.slice(2));
  assert.deepEqual(Object.keys(typesVersions["*"]), names.filter(Boolean));
});
