// What is wrong with the view that is shown, for a person who sees badly, has no mouse, or has a small screen.
const wrong = [];
const shown = (e) => { const s = getComputedStyle(e); const r = e.getBoundingClientRect(); return s.visibility !== "hidden" && s.display !== "none" && r.width > 1 && r.height > 1; };
const rgb = (text) => (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0.99) return c; } return [255, 255, 255]; };
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const seen = new Set();
for (let n = walker.nextNode(); n; n = walker.nextNode()) {
  const e = n.parentElement;
  if (!n.nodeValue.trim() || seen.has(e) || !shown(e) || e.closest("script, dialog:not([open]), .hidden, .skip")) continue;
  seen.add(e);
  const style = getComputedStyle(e);
  const svg = e.closest("svg");
  const [a, b] = [light(rgb(svg ? style.fill : style.color)), light(ground(svg ? svg.parentElement : e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const size = parseFloat(style.fontSize);
  const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
  if (ratio < least) wrong.push(`contrast ${ratio.toFixed(2)} of "${n.nodeValue.trim().slice(0, 40)}" (${style.color})`);
  if (!svg && size < 10.5) wrong.push(`letters of ${size} px: "${n.nodeValue.trim().slice(0, 40)}"`);
}
const named = (e) => (e.getAttribute("aria-label") || e.textContent || (e.labels && e.labels.length && e.labels[0].textContent) || "").trim() !== "";
for (const e of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, [role=img], th")) if (!named(e) && !(e.nodeName === "TH" && !e.scope)) wrong.push(`no name: ${e.outerHTML.slice(0, 100)}`);
for (const e of document.querySelectorAll("svg:not([aria-hidden])")) if (!e.getAttribute("aria-label") && !e.closest("a[aria-label]")) wrong.push(`a picture without a name: ${e.outerHTML.slice(0, 80)}`);
if (document.querySelectorAll("h1").length !== 1) wrong.push(`${document.querySelectorAll("h1").length} main headings`);
if (!document.documentElement.lang) wrong.push("no language");
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
if (new Set(ids).size !== ids.length) wrong.push("an id twice");
if (document.documentElement.scrollWidth > innerWidth) wrong.push(`wider than the screen: ${document.documentElement.scrollWidth} of ${innerWidth}`);
return wrong;
