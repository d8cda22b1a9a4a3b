// Preact with its hooks and HTM, as one module. Preact's own modules import each other by bare names,
// which browsers resolve by an inline import map only, and the policy of the page allows no inline
// scripts. So its classic scripts are loaded before this module.

import htm from "./vendor/htm.js";

const { h, render } = globalThis.preact;

export const html = htm.bind(h);
export { render };
export const { useCallback, useEffect, useRef, useState } = globalThis.preactHooks;
