// What the theme leaves without a name, out of the keyboard's reach, or makes a landmark each.
const amend = (selector, name, value) =>
  document.querySelectorAll(selector).forEach((one) => one.setAttribute(name, value));
const amendAll = () => {
  amend(".md-search[role=dialog]", "aria-label", "Search");
  amend(".md-typeset__scrollwrap", "tabindex", "0");
  amend(".md-code__nav", "role", "none"); // of a copy button
};
amendAll(); // the theme wraps tables and adds buttons after this file ran, or before
new MutationObserver(amendAll).observe(document.body, { childList: true, subtree: true });
