// Puts the page together, again when something is toggled, and when served, whenever results.json
// has changed.

function toggle(name) {
  if (hidden.has(name)) hidden.delete(name);
  else hidden.add(name);
  render();
}

function bar() {
  const toggles = results.mechanisms.map((mechanism, i) => h('label', { class: 'toggle' },
    h('input', { type: 'checkbox', id: `toggle-${i}`, checked: !hidden.has(mechanism.name),
      change: () => toggle(mechanism.name) }), named(mechanism.name)));
  const next = themes[(themes.indexOf(theme) + 1) % themes.length];
  return [
    h('fieldset', {}, h('legend', { class: 'unseen' }, 'Mechanisms in the figures'), toggles),
    h('button', { type: 'button', id: 'theme', 'aria-label': `Colours: ${theme}; change to ${next}`,
      click: () => {
        theme = saved('theme', next) || next;
        applyTheme(theme);
        render();
      } }, { auto: '◐', light: '☀', dark: '☾' }[theme], h('span', {}, ` ${theme}`)),
  ];
}

function contents(parts) {
  const titles = parts.map((part) => [part.id, part.querySelector('h2')])
    .filter(([, title]) => title);
  return h('nav', { 'aria-label': 'Parts of this page', class: 'contents' }, h('ol', {},
    titles.map(([id, title]) => h('li', {}, h('a', { href: `#${id}` }, title.textContent)))));
}

function render() {
  keepingFocus(() => {
    forgetFigures();
    document.title = results.title;
    document.getElementById('bar').replaceChildren(...bar());
    const kept = document.getElementById('explorer');
    const parts = [
      answerSection(), ...groupSections(), mapsSection(), ellipsesSection(),
      kept || explorerSection(), costSection(), trainingSection(), configurationSection(),
      takeSection(),
    ].filter(Boolean);
    parts.splice(1, 0, contents(parts));
    document.getElementById('content').replaceChildren(...parts);
  });
}

let seen = null;  // the tag of the results on the page

async function look() {
  let pause = 10000;
  try {
    const reply = await fetch('results.json', {
      cache: 'no-store', headers: seen ? { 'If-None-Match': seen } : {},
    });
    if (reply.status === 200) {
      const text = await reply.json();
      const first = seen === null;
      seen = reply.headers.get('ETag');
      const fresh = readResults(text);
      if (!first || JSON.stringify(text) !== JSON.stringify(results.raw)) {
        results = fresh;
        decoded.clear();
        render();
        say('The results have changed.');
      }
    }
    document.documentElement.classList.remove('alone');
  } catch (fault) {
    document.documentElement.classList.add('alone');
  }
  if (results.state !== 'done') pause = 2000;
  setTimeout(look, pause);
}

applyTheme(theme);
render();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', render);
window.addEventListener('beforeprint', () => {
  applyTheme('light');
  render();
  queueMicrotask(() => {
    for (const chart of drawn) chart.resize(Math.min(620, chart.width), chart.height);
  });
});
window.addEventListener('afterprint', () => {
  applyTheme(theme);
  render();
});
if (isServed) look();
