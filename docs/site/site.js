// What the theme leaves without a name, or out of the keyboard's reach.
document.querySelectorAll(".md-search[role=dialog]").forEach((one) => one.setAttribute("aria-label", "Search"));
const reachable = () =>
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((one) => one.setAttribute("tabindex", "0"));
reachable(); // the theme wraps tables after this file ran, or before
new MutationObserver(reachable).observe(document.body, { childList: true, subtree: true });
