// A keyboard can scroll wide code and wide tables; each code block has a name.
function improve() {
  document.querySelectorAll("pre > code, .md-typeset__scrollwrap").forEach(part => part.setAttribute("tabindex", "0"));
  document.querySelectorAll("nav.md-code__nav").forEach((part, index) => {
    part.setAttribute("aria-label", `Code ${index + 1}`);
  });
}
improve();
new MutationObserver(improve).observe(document.body, { childList: true, subtree: true });
