"use strict";
// Shows a later version of the page as soon as there is one.
const shown = document.documentElement.dataset.version;
setInterval(async () => {
  try {
    const response = await fetch("/version" + location.search);
    if (response.ok && (await response.text()) !== shown) location.reload();
  } catch {
    // `saga preview` has ended, or is being started again.
  }
}, 700);
