/** `node --import ./test/older.mjs`: OLDER=rate-limiter-flexible-2 is imported where its name without the number stands. */

import Module, { register } from "node:module";

const older = process.env.OLDER;
const newest = older.replace(/-\d+$/, "");
const hook = `export const resolve = (name, context, next) => next(name === "${newest}" ? "${older}" : name, context);`;
register(`data:text/javascript,${encodeURIComponent(hook)}`);
const { require } = Module.prototype;
Module.prototype.require = function (name) {
  return require.call(this, name === newest ? older : name);
};
