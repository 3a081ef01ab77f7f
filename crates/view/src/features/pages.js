// The list of features, or the one that the address names after #.
(() => {
  const SHOWN = 200;
  const main = byId("main");
  const search = byId("search");
  const data = globalThis.featureData ?? {};
  if (!data.index) {
    main.textContent = "features/index.js is not beside this page: copy the whole folder.";
    return;
  }
  const { about, inAFile, list } = data.index;
  const order = new Map(list.map((one, place) => [one[0], place]));

  const link = (feature) => {
    if (!order.has(feature)) return make("span", "number", String(feature));
    const element = make("a", "number", String(feature));
    element.href = `#${feature}`;
    return element;
  };
  const context = (before, at, after) =>
    make("span", "text", flowing(before ?? ""), make("span", "peak", flowing(at ?? "")), flowing(after ?? ""));

  byId("about").textContent = flowing(
    `${about.dictionary.name}: ${about.dictionary.architecture}, ${about.dictionary.features} features of ${about.dictionary.hook}` +
      `${about.dictionary.hook_out ? `, predicts ${about.dictionary.hook_out}` : ""}; ${about.model}; over ${about.tokens.toLocaleString("en")} tokens, ` +
      `L0 ${fixed(about.l0, 1)}${about.explained_variance === null ? "" : `, explained variance ${fixed(about.explained_variance, 3)}`}`,
  );

  const showList = () => {
    const words = search.value.trim().toLowerCase();
    const has = ([feature, , tokens, before, at, after, , explanations]) =>
      String(feature) === words ||
      [...tokens, `${before ?? ""}${at ?? ""}${after ?? ""}`, ...explanations].some((text) => String(text).toLowerCase().includes(words));
    const found = words ? list.filter(has) : list;
    const rows = found.slice(0, SHOWN).map(([feature, share, tokens, before, at, after, , explanations, fires]) => [
      [link(feature), "number"],
      [percent(share), "number"],
      [make("span", "", ...tokens.map(token)), "wide"],
      [make("div", "", ...explained(explanations), fires ? context(before, at, after) : make("span", "quiet", "never fires"))],
    ]);
    const heads = [["feature", "number"], ["fires at", "number"], ["makes likelier", "wide"], ["where it fires most"]];
    const note = found.length > SHOWN ? `the first ${SHOWN} of ${found.length}: search for more` : `${found.length} features`;
    main.replaceChildren(make("p", "quiet", note), table(heads, rows));
    document.title = "Features";
  };

  const histogram = (bars) => {
    const most = Math.max(...bars.map(([, , count]) => count));
    const svg = draw("svg", { viewBox: "0 0 320 110", role: "img", "aria-label": `activations from ${number(bars[0][0])} to ${number(bars.at(-1)[1])}` });
    bars.forEach(([from, to, count], i) => {
      const height = (90 * count) / most;
      const title = draw("title", {}, `${number(from)} to ${number(to)}: ${count} tokens`);
      svg.append(draw("rect", { x: (320 * i) / bars.length, y: 92 - height, width: 320 / bars.length - 1, height }, title));
    });
    svg.append(draw("text", { x: 0, y: 106 }, number(bars[0][0])), draw("text", { x: 320, y: 106, "text-anchor": "end" }, number(bars.at(-1)[1])));
    return svg;
  };

  const tokens = (title, all, className) =>
    part(title, table([["token"], ["logit", "number"]], all.map(([label, logit]) => [[token(label)], [signed(logit), `number ${className}`]])));

  const showFeature = (one) => {
    const at = order.get(one.feature);
    const pages = make("p", "pages");
    for (const [word, place] of [["← before", at - 1], ["next →", at + 1]]) {
      if (!list[place]) continue;
      const element = make("a", "", word);
      element.href = `#${list[place][0]}`;
      pages.append(element);
    }
    const facts = [`fires at ${percent(one.share)} of the tokens`];
    if (one.mean !== null) facts.push(`${number(one.mean)} on average there`);
    if (one.quantiles) facts.push(`half of its activations below ${number(one.quantiles[0])}, 90 % below ${number(one.quantiles[1])}, 99 % below ${number(one.quantiles[2])}`);
    const parts = [];
    if (one.histogram?.length) parts.push(part("How large its activations are (four bars to a doubling)", histogram(one.histogram)));
    if (one.promoted) {
      parts.push(tokens("Makes likelier, per unit", one.promoted.likelier, "more"));
      parts.push(tokens("Makes less likely", one.promoted.less_likely, "less"));
    }
    const near = [];
    if (one.related?.length)
      near.push(part("Features of like direction", table([["feature", "number"], ["cosine", "number"]], one.related.map(([feature, cosine]) => [[link(feature), "number"], [fixed(cosine, 3), "number"]]))));
    if (one.read_by?.length)
      near.push(part("Heads that read its direction (share in q, k, v)", table([["head"], ["q", "number"], ["k", "number"], ["v", "number"]], one.read_by.map(([head, shares]) => [[flowing(head)], ...shares.map((share) => [fixed(share, 3), "number"])]))));
    const places = one.strongest.map((place) => [
      [number(place.activation), "number"],
      [`${place.document}:${place.position}`, "number quiet wide"],
      [context(place.before, place.token, place.after)],
    ]);
    main.replaceChildren(
      pages,
      make("h2", "", `Feature ${one.feature}`),
      ...explained(one.explanations),
      make("p", "quiet", `${facts.join("; ")}.`),
      make("div", "parts", ...parts),
      part("Where it fires most", table([["activation", "number"], ["document:position", "number wide"], ["text"]], places)),
      make("div", "parts", ...near),
    );
    document.title = `Feature ${one.feature}`;
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  };

  const show = () => {
    const wanted = location.hash.slice(1);
    const place = /^\d+$/.test(wanted) ? order.get(Number(wanted)) : undefined;
    if (place === undefined) {
      showList();
      return;
    }
    const file = String(Math.floor(place / inAFile));
    const found = () => {
      if (location.hash.slice(1) === wanted) showFeature(data[file][place % inAFile]);
    };
    if (data[file]) {
      found();
      return;
    }
    const script = make("script");
    script.src = `features/${file}.js`;
    script.onload = found;
    script.onerror = () => {
      script.remove();
      if (location.hash.slice(1) === wanted) main.textContent = `features/${file}.js is not beside this page: copy the whole folder.`;
    };
    document.head.append(script);
  };

  search.addEventListener("input", () => {
    if (location.hash.length > 1) location.hash = "";
    else showList();
  });
  addEventListener("hashchange", show);
  show();
  performance.mark("ready");
})();
