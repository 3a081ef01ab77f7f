// A page whose data is in script elements that the browser does not run.

showPage((kind) => [...document.querySelectorAll(`script.${kind}`)]);
