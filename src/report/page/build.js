// Elements out of tags, attributes and children. Text is always a text node: nothing that comes
// from data is ever read as markup.

const svgSpace = 'http://www.w3.org/2000/svg';

function put(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false || child === '') continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

const h = (tag, attributes = {}, ...children) =>
  put(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) =>
  put(document.createElementNS(svgSpace, tag), attributes, children);

/// A name as it may stand in an id.
const slug = (name) => name.replace(/[^A-Za-z0-9]+/g, '_');

let lastId = 0;
const freshId = (stem) => `${stem}-${++lastId}`;

/// A table: `head` and each row are lists of texts or elements; the first cell of a row heads it.
function tableOf(caption, head, rows) {
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
    h('table', {},
      h('caption', {}, caption),
      h('thead', {}, h('tr', {}, head.map((cell) => h('th', { scope: 'col' }, cell)))),
      h('tbody', {}, rows.map((row) => h('tr', {}, row.map((cell, i) =>
        i === 0 ? h('th', { scope: 'row' }, cell) : h('td', {}, cell)))))));
}

function labelled(text, control) {
  const id = control.id || freshId('control');
  control.id = id;
  return h('label', { class: 'labelled', for: id }, h('span', {}, text), control);
}

function select(id, options, chosen, onChange) {
  const control = h('select', { id, change: () => onChange(control.value) },
    options.map(([value, text]) => h('option', { value, selected: value === chosen }, text)));
  return control;
}

/// Folded away, and as it was left when the page is drawn again. A content that is a function is
/// made when it is first seen.
const opened = new Set();
function folded(id, summary, content) {
  const element = h('details', { id, open: opened.has(id) }, h('summary', {}, summary));
  let later = content;
  const fill = () => {
    if (later === null) return;
    element.append(...[typeof later === 'function' ? later() : later].flat());
    later = null;
  };
  if (typeof content !== 'function' || opened.has(id)) fill();
  element.addEventListener('toggle', () => {
    if (element.open) opened.add(id);
    else opened.delete(id);
    fill();
  });
  return element;
}

function say(text) {
  document.getElementById('spoken').textContent = text;
}

function saved(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(`foci-${name}`);
    localStorage.setItem(`foci-${name}`, value);
  } catch (fault) {
    return null;  // a browser that keeps nothing: the page then forgets
  }
  return value;
}
