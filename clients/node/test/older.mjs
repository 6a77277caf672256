/** `node --import ./test/older.mjs`: OLDER=rate-limiter-flexible-2 is imported where its name without the number stands. */

import { register } from "node:module";

const older = process.env.OLDER;
const newest = older.replace(/-\d+$/, "");
const hook = `export const resolve = (name, context, next) => next(name === "${newest}" ? "${older}" : name, context);`;
register(`data:text/javascript,${encodeURIComponent(hook)}`);
