// The console asks the HTTP API and draws what it says. No framework, no build step.
'use strict';

const $ = id => document.getElementById(id);
const history = new Map(); // device index → [{read, write}] a second, newest last
const HISTORY = 120;
let last = null; // the stats before, and when
let rates = {};  // by counter, a second
let map = null;  // the stripe map, and where its cells lie
let at = { row: 0, col: 0 };

// --- numbers for people

function bytes(n, per) {
  const units = ['B', 'KB', 'MB', 'GB', 'TB', 'PB'];
  let i = 0;
  while (Math.abs(n) >= 1000 && i < units.length - 1) { n /= 1000; i++; }
  return (n >= 100 || i === 0 ? n.toFixed(0) : n.toPrecision(3)) + ' ' + units[i] + (per ? '/s' : '');
}
const count = n => n.toLocaleString('en');
const share = (n, of) => of > 0 ? (100 * n / of).toFixed(1) + ' %' : '–';
const took = ns => ns >= 1e9 ? (ns / 1e9).toFixed(2) + ' s' : ns >= 1e6 ? (ns / 1e6).toFixed(1) + ' ms' : (ns / 1e3).toFixed(0) + ' µs';
const each = n => n >= 10 ? n.toFixed(0) + '/s' : n > 0 ? n.toFixed(1) + '/s' : '–';

// --- the API

async function api(path, body) {
  const headers = {};
  const token = sessionStorage.getItem('token');
  if (token) headers.Authorization = 'Bearer ' + token;
  const init = { headers };
  if (body !== undefined) {
    init.method = 'POST';
    init.body = JSON.stringify(body);
    headers['Content-Type'] = 'application/json';
  }
  const r = await fetch('api/v1/' + path, init);
  if (r.status === 401) {
    askForToken(token ? 'That token is not accepted.' : 'This server has credentials. The token stays in this tab.');
    throw Object.assign(new Error('no token'), { status: 401 });
  }
  const answer = await r.json();
  if (!r.ok) throw Object.assign(new Error(answer.error ? answer.error.message : r.statusText), { status: r.status });
  return answer;
}

function askForToken(why) {
  $('login-why').textContent = why;
  if (!$('login').open) $('login').showModal();
}
$('login').addEventListener('close', () => {
  sessionStorage.setItem('token', $('token').value.trim());
  $('token').value = '';
  start();
});
$('logout').addEventListener('click', () => { sessionStorage.removeItem('token'); location.reload(); });

// needs shows a section, or says why not. What a tenant may not see is left out.
function needs(name, error) {
  for (const s of document.querySelectorAll(`[data-needs="${name}"]`)) s.hidden = !!error && (error.status === 403 || error.status === 501);
}

// --- drawing

function rows(id, list, cells, nothing) {
  const body = $(id).tBodies[0];
  const out = list.map(item => {
    const tr = document.createElement('tr');
    for (const c of cells(item)) {
      const td = document.createElement('td');
      if (c instanceof Node) td.append(c); else td.textContent = Array.isArray(c) ? c[0] : c;
      if (Array.isArray(c)) td.className = c[1];
      tr.append(td);
    }
    return tr;
  });
  if (!out.length) {
    const tr = document.createElement('tr'), td = document.createElement('td');
    td.colSpan = 9; td.className = 'empty'; td.textContent = nothing;
    tr.append(td); out.push(tr);
  }
  body.replaceChildren(...out);
}

function rate(name, value, seconds) {
  const before = last && last.counters[name];
  return before === undefined || seconds <= 0 ? 0 : Math.max(0, (value - before) / seconds);
}

function countersOf(st) {
  const c = { hits: st.lookup_hits, misses: st.lookup_keys - st.lookup_hits };
  for (const d of st.devices || []) { c['read' + d.index] = d.bytes_read; c['write' + d.index] = d.bytes_written; }
  for (const [k, v] of Object.entries(st.restore_tiers || {})) c['tier ' + k] = v;
  for (const [k, v] of Object.entries(st.restore_misses || {})) c['miss ' + k] = v;
  for (const [k, v] of Object.entries(st.put_declined || {})) c['declined ' + k] = v;
  return c;
}

function drawStats(st) {
  const now = performance.now() / 1000;
  const counters = countersOf(st), seconds = last ? now - last.now : 0;
  const r = name => rate(name, counters[name], seconds);
  let reading = 0, writing = 0;
  for (const d of st.devices || []) {
    const h = history.get(d.index) || [];
    if (last) h.push({ read: r('read' + d.index), write: r('write' + d.index) });
    while (h.length > HISTORY) h.shift();
    history.set(d.index, h);
    const n = h[h.length - 1] || { read: 0, write: 0 };
    reading += n.read; writing += n.write;
  }
  $('t-read').textContent = bytes(reading, true);
  $('t-read-sub').textContent = `${bytes(st.restored_bytes)} restored in all`;
  $('t-write').textContent = bytes(writing, true);
  $('t-write-sub').textContent = `${bytes(st.put_bytes)} put in all`;
  $('t-hit').textContent = share(st.lookup_hits, st.lookup_keys);
  $('t-hit-sub').textContent = `${count(st.lookup_keys)} keys asked for`;
  $('t-blocks').textContent = bytes(st.block_bytes);
  const limits = [['cap', st.capacity_bytes], ['room', st.room_bytes]].filter(([, n]) => n > 0).map(([what, n]) => `, ${what} ${bytes(n)}`);
  $('t-blocks-sub').textContent = `${count(st.blocks)} blocks, ${count(st.evicted)} evicted${limits.join('')}`;
  $('t-free').textContent = count(st.free_groups);
  $('t-free-sub').textContent = `${count(st.groups)} in use`;
  $('t-leases').textContent = count(st.leases);
  $('t-leases-sub').textContent = `${bytes(st.leased_bytes)}, ${count(st.broken_promises)} broken`;
  $('state').textContent = st.state;
  $('state').className = 'pill ' + (st.state === 'ok' ? 'ok' : 'bad');
  drawDevices(st.devices || []);

  const tiers = Object.entries(st.restore_tiers || {}), sum = tiers.reduce((a, [, v]) => a + v, 0);
  rows('tiers', tiers, ([k, v]) => [k, [bytes(v), 'n'], [share(v, sum), 'n'], [bytes(r('tier ' + k), true), 'n']], 'nothing restored');
  const misses = st.lookup_keys - st.lookup_hits;
  rows('lookups', st.lookup_keys ? [['found', st.lookup_hits, 'hits'], ['not found', misses, 'misses']] : [],
    ([k, v, c]) => [k, [count(v), 'n'], [share(v, st.lookup_keys), 'n'], [each(r(c)), 'n']], 'nothing asked for');
  const reasons = [];
  for (const [k, v] of Object.entries(st.restore_misses || {})) reasons.push(['restore: ' + k, v, 'miss ' + k]);
  for (const [k, v] of Object.entries(st.put_declined || {})) reasons.push(['put: ' + k, v, 'declined ' + k]);
  rows('reasons', reasons.sort((a, b) => b[1] - a[1]), ([k, v, c]) => [k, [count(v), 'n'], [each(r(c)), 'n']], 'none');
  last = { now, counters };
}

const SVG = 'http://www.w3.org/2000/svg';
function svg(name, attrs) {
  const e = document.createElementNS(SVG, name);
  for (const [k, v] of Object.entries(attrs)) e.setAttribute(k, v);
  return e;
}

// What tells each path from the others, as skep top has it: its last element where these differ, else what is left
// without the elements that all begin with, and those that all end with; the paths where that is nothing.
function apart(paths) {
  const parts = paths.map(p => p.split('/')), bases = parts.map(p => p[p.length - 1]);
  if (new Set(bases).size === bases.length) return bases;
  let least = Math.min(...parts.map(p => p.length));
  const shared = of => {
    let n = 0;
    while (n < least - 1 && parts.every(p => of(p, n) === of(parts[0], n))) n++;
    return n;
  };
  const behind = shared((p, n) => p[p.length - 1 - n]);
  least -= behind;
  const before = shared((p, n) => p[n]);
  const names = parts.map(p => p.slice(before, p.length - behind).join('/'));
  return names.includes('') ? paths : names;
}

function drawDevices(devices) {
  const names = apart(devices.map(d => d.path));
  let most = 1e6, span = 30; // seconds shown: at least, then as many as there are
  for (const h of history.values()) {
    span = Math.max(span, h.length);
    for (const p of h) most = Math.max(most, p.read, p.write);
  }
  $('devices').replaceChildren(...devices.map((d, i) => {
    const h = history.get(d.index) || [], now = h[h.length - 1] || { read: 0, write: 0 };
    const div = document.createElement('div');
    div.className = 'device';
    const who = document.createElement('div'), name = document.createElement('b'), about = document.createElement('small');
    name.textContent = `${d.index}  ${names[i]}`;
    name.title = d.path;
    about.textContent = `${d.state}, ${d.backend}${d.simulated ? ', simulated' : ''}, ${d.in_flight} under way, reads take ${took(d.read_latency_us * 1e3)}`;
    if (d.state !== 'ok' && d.state !== 'healthy') about.className = 'bad';
    who.append(name, about);
    const chart = svg('svg', { viewBox: `1 0 ${span - 1} 100`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `device ${d.index}: reads ${bytes(now.read, true)}, writes ${bytes(now.write, true)}` });
    chart.append(svg('line', { class: 'axis', x1: 0, x2: span, y1: 99, y2: 99 }));
    for (const what of ['read', 'write']) {
      const points = h.map((p, i) => `${span - h.length + i + 1},${(98 - 94 * p[what] / most).toFixed(1)}`).join(' ');
      chart.append(svg('polyline', { class: what, points }));
    }
    const n = document.createElement('div');
    n.className = 'now';
    for (const [what, text] of [['read', bytes(now.read, true) + ' read'], ['write', bytes(now.write, true) + ' written']]) {
      const s = document.createElement('span');
      s.className = what; s.textContent = text;
      n.append(s);
    }
    if (d.errors) { const s = document.createElement('span'); s.className = 'bad'; s.textContent = count(d.errors) + ' errors'; n.append(s); }
    div.append(who, chart, n);
    return div;
  }));
}

// --- the stripe map: a row a device, a cell a segment

function mapOf(s) {
  const grid = s.devices.map(d => Array.from({ length: d.segments }, () => null));
  const rowOf = new Map(s.devices.map((d, i) => [d.index, i]));
  for (const g of s.groups) {
    g.devices.forEach((d, i) => {
      const row = grid[rowOf.get(d)];
      if (row) { while (row.length <= g.segments[i]) row.push(null); row[g.segments[i]] = g; }
    });
  }
  return { devices: s.devices, grid };
}

function drawMap() {
  if (!map) return;
  const c = $('map'), css = getComputedStyle(document.documentElement), color = k => css.getPropertyValue('--' + k).trim();
  const widest = Math.max(1, ...map.grid.map(r => r.length));
  const width = c.clientWidth || 800, scale = window.devicePixelRatio || 1;
  const perLine = Math.min(widest, Math.max(40, Math.floor(width / 9)));
  const cell = Math.min(width / perLine, 26), high = Math.max(10, Math.min(cell, 26));
  const lines = map.grid.map(r => Math.max(1, Math.ceil(r.length / perLine)));
  const gap = 8, height = lines.reduce((a, n) => a + n * high + gap, 0);
  c.style.height = height + 'px';
  c.width = width * scale; c.height = height * scale;
  const g = c.getContext('2d');
  g.scale(scale, scale);
  map.place = []; // rows' tops
  let y = 0;
  map.grid.forEach((row, i) => {
    map.place.push(y);
    row.forEach((seg, j) => {
      const x = (j % perLine) * cell, top = y + Math.floor(j / perLine) * high, w = Math.max(cell - 1.5, 1), h = high - 1.5;
      g.fillStyle = color(!seg ? 'free' : seg.state === 'open' ? 'open' : seg.state === 'cleaning' ? 'cleaning' : 'dead');
      g.fillRect(x, top, w, h);
      if (seg && seg.state === 'sealed' && seg.capacity_bytes > 0) { // live from below, hot at the bottom
        const live = Math.min(1, seg.live_bytes / seg.capacity_bytes), hot = Math.min(live, seg.hot_bytes / seg.capacity_bytes);
        g.fillStyle = color('cold');
        g.fillRect(x, top + h * (1 - live), w, h * live);
        g.fillStyle = color('hot');
        g.fillRect(x, top + h * (1 - hot), w, h * hot);
      }
      if (i === at.row && j === at.col && document.activeElement === c) {
        g.strokeStyle = color('ink'); g.lineWidth = 2;
        g.strokeRect(x, top, w, h);
      }
    });
    y += lines[i] * high + gap;
  });
  Object.assign(map, { perLine, cell, high });
  tellMap();
}

function tellMap() {
  const d = map.devices[at.row], row = map.grid[at.row];
  if (!d || !row) return;
  const g = row[at.col], where = `device ${d.index}, segment ${at.col} (${bytes(d.segment_bytes)})`;
  let used = 0;
  for (const r of map.grid) for (const s of r) if (s) used++;
  const all = map.grid.reduce((a, r) => a + r.length, 0);
  const focused = document.activeElement === $('map') || map.over;
  $('map-text').textContent = !focused
    ? `${count(used)} of ${count(all)} segments in use on ${map.devices.length} devices. Arrow keys or the pointer tell of one.`
    : !g ? `${where}: free`
    : `${where}: group ${g.group}, ${g.state}, ${count(g.blocks)} blocks, ${bytes(g.live_bytes)} live, ${bytes(g.hot_bytes)} hot` + (g.capacity_bytes ? ` of ${bytes(g.capacity_bytes)} in the group` : '');
}

$('map').addEventListener('keydown', e => {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
  if (!step || !map) return;
  e.preventDefault();
  at.row = Math.max(0, Math.min(map.grid.length - 1, at.row + step[0]));
  at.col = Math.max(0, Math.min(map.grid[at.row].length - 1, at.col + step[1]));
  drawMap();
});
$('map').addEventListener('pointermove', e => {
  if (!map || !map.place) return;
  const y = e.offsetY, row = map.place.findLastIndex(top => top <= y);
  const col = Math.floor((y - map.place[row]) / map.high) * map.perLine + Math.floor(e.offsetX / map.cell);
  if (row >= 0 && col < map.grid[row].length) { at = { row, col }; map.over = true; tellMap(); }
});
$('map').addEventListener('pointerleave', () => { if (map) { map.over = false; tellMap(); } });
for (const e of ['focus', 'blur']) $('map').addEventListener(e, drawMap);
window.addEventListener('resize', drawMap);

// --- tables

function shapeOf(s) {
  if (s.kind === 0) return s.bytes ? `opaque, ${bytes(s.bytes)}` : 'opaque';
  const type = ['', 'bf16', 'f16', 'f32', 'fp8', 'i8', 'fp4'][s.element || 0];
  return `${s.layers} layers × ${s.kv_heads ? s.kv_heads + ' heads × ' : ''}${s.head_dim}, ${type}, ${s.block_tokens} tokens`;
}

function drawJobs(list) {
  const focus = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.key : null;
  rows('jobs', list, j => {
    const name = document.createElement('span'), b = document.createElement('b'), about = document.createElement('small');
    b.textContent = j.name; about.textContent = ' ' + j.about; about.className = 'empty';
    name.append(b, about);
    let progress = '–';
    if (j.progress >= 0) {
      progress = document.createElement('progress');
      progress.max = 1; progress.value = j.progress;
      progress.setAttribute('aria-label', `${j.name}: ${share(j.progress, 1)}`);
    }
    const does = document.createElement('span');
    for (const a of j.actions) {
      const button = document.createElement('button');
      button.type = 'button'; button.textContent = a; button.dataset.key = `${j.name} ${a}`;
      button.setAttribute('aria-label', `${a} ${j.name}`);
      button.addEventListener('click', () => steer(j.name, a));
      does.append(button);
    }
    return [name, [j.state, j.state === 'failed' ? 'bad' : ''], progress, j.detail, does];
  }, 'this store offers none');
  if (focus) { const b = document.querySelector(`[data-key="${CSS.escape(focus)}"]`) || document.querySelector(`[data-key^="${CSS.escape(focus.split(' ')[0])} "]`); if (b) b.focus(); }
}

async function steer(job, action) {
  try {
    drawJobs(await api(`jobs/${encodeURIComponent(job)}/${encodeURIComponent(action)}`, {}));
    $('jobs-said').textContent = `${job}: ${action} was taken.`;
  } catch (e) {
    $('jobs-said').textContent = `${job}: ${e.message}`;
  }
}

// --- the cluster: a row a node, what it has beside what it is to have

const sentBefore = new Map(); // node → bytes that it had sent, and when

function drawCluster(c) {
  const up = c.nodes.filter(n => n.state === 'up' && n.reached).length, sum = c.nodes.reduce((a, n) => a + (n.load ? n.load.bytes : 0), 0);
  const copies = c.replicas > 1 ? `${c.replicas} nodes have each block of a chain` : 'one node has each block';
  const down = c.down_after ? `a node is down by itself after ${c.down_after} s without a word` : 'no node is down by itself';
  $('cluster-text').textContent = `${up} of ${c.nodes.length} nodes answer and are up, epoch ${c.epoch}, ` +
    (c.leader ? `${c.leader} leads` : 'nobody leads: the map cannot be changed') + `, ${bytes(sum)} stored; ${copies}; ${down}.` + (c.error ? ` This node takes no part any more: ${c.error}` : '');
  $('cluster-text').className = c.leader && !c.error ? '' : 'bad';
  rows('cluster', c.nodes, n => {
    const name = document.createElement('span'), b = document.createElement('b'), where = document.createElement('small');
    b.textContent = n.name || '–';
    where.textContent = ' ' + (n.domain || []).join(' / '); where.className = 'empty';
    name.append(b, where);
    if (n.name === c.node) name.append(' (this one)');
    const state = n.reached ? n.state : n.state === 'down' ? 'down' : `${n.state}, does not answer`;
    const l = n.load;
    return [name, n.addr, [state, n.reached && n.state === 'up' ? '' : 'bad'], n.role,
      [n.reached ? (n.behind ? `${n.epoch}, ${count(n.behind)} behind` : n.epoch) : '–', 'n'],
      shares(n), [l ? `${count(l.blocks)} blocks, ${bytes(l.bytes)}` : 'not known', 'n'], [l && l.capacity ? bytes(l.capacity) : '–', 'n'], moves(n)];
  }, 'none');
}

// shares draws what a node has of all that is stored, and below it what its weight gives it.
function shares(n) {
  const has = n.load ? n.load.share : 0, most = 100;
  const s = svg('svg', { class: 'shares', viewBox: `0 0 ${most} 12`, preserveAspectRatio: 'none', role: 'img',
    'aria-label': `has ${share(has, 1)} of what is stored, and is to have ${share(n.share, 1)}` });
  s.append(svg('rect', { class: 'has', x: 0, y: 0, width: most * has, height: 7 }), svg('rect', { class: 'due', x: 0, y: 8, width: most * n.share, height: 4 }));
  const text = document.createElement('small');
  text.textContent = ` ${n.load ? share(has, 1) : '–'} / ${share(n.share, 1)}`;
  const out = document.createElement('span');
  out.append(s, text);
  return out;
}

function moves(n) {
  const l = n.load;
  if (!l) return '–';
  const before = sentBefore.get(n.name), now = performance.now() / 1000;
  sentBefore.set(n.name, { sent: l.sent_bytes, now });
  const speed = before && l.sent_bytes >= before.sent ? (l.sent_bytes - before.sent) / (now - before.now) : 0;
  const missing = l.missing > 0 ? `${count(l.missing)} could not be made` : l.missing === 0 ? 'none missing' : '';
  if (l.repairing) return `sending, ${bytes(l.sent_bytes)}${speed ? ` at ${bytes(speed, true)}` : ''}`;
  return missing || (l.missing < 0 ? 'not looked at yet' : '–');
}

const draw = {
  stats: drawStats,
  cluster: drawCluster,
  segments: s => { map = Object.assign(mapOf(s), { over: map && map.over }); drawMap(); },
  tenants: list => rows('tenants', list, t => [t.tenant, [t.share_bytes ? bytes(t.share_bytes) : 'none', 'n'], [t.requests_per_second || 'any', 'n'],
    [t.bytes_per_second ? bytes(t.bytes_per_second) : 'any', 'n'], [t.connections + (t.max_connections ? ' of ' + t.max_connections : ''), 'n'], [count(t.shed), 'n']], 'none'),
  namespaces: list => rows('namespaces', list, n => [n.tenant, n.name, n.model || '–', ['cache', 'durable'][n.class], [n.copies || 1, 'n'], shapeOf(n.shape)], 'none'),
  calls: list => rows('calls', list, c => [`${c.protocol} ${c.name}`, c.tenant, [took(c.duration_ns), 'n'], [c.keys || '–', 'n'], [c.bytes ? bytes(c.bytes) : '–', 'n'], [c.outcome, c.outcome === 'error' ? 'bad' : ''], new Date(c.start).toLocaleTimeString()], 'none'),
  jobs: drawJobs,
};

// --- the clock

async function refresh(name) {
  try {
    const answer = await api(name === 'calls' ? 'calls?n=12' : name);
    needs(name);
    draw[name](answer);
    $('warning').hidden = $('warning').dataset.keep !== 'yes';
  } catch (e) {
    needs(name, e);
    if (e.status === 401) throw e;
    if (e.status === undefined) {
      $('state').textContent = 'no answer';
      $('state').className = 'pill bad';
    }
    if (e.status !== 403 && e.status !== 501) console.warn(name, e.message);
  }
}

let timers = [];
async function start() {
  timers.forEach(clearInterval);
  timers = [];
  try {
    const s = await api('server');
    $('server').textContent = `${s.version || ''} up since ${new Date(s.started).toLocaleString()} · ${s.tenant} (${s.rights.join(', ')})`;
    $('logout').hidden = s.open;
    if (s.open) {
      $('warning').textContent = 'No credentials are configured: whoever reaches this machine’s loopback ports has all rights.';
      $('warning').dataset.keep = 'yes';
      $('warning').hidden = false;
    }
    if (!s.rights.includes('operator')) $('state').textContent = 'tenant view';
    const every = { stats: 1, ...(s.cluster && { cluster: 2 }), segments: 3, jobs: 1, calls: 3, tenants: 3, namespaces: 5 };
    for (const [name, seconds] of Object.entries(every)) {
      await refresh(name);
      timers.push(setInterval(() => document.hidden || refresh(name).catch(() => {}), seconds * 1000));
    }
  } catch (e) {
    if (e.status !== 401) setTimeout(start, 2000);
  }
}

// --- light and dark

const theme = localStorage.getItem('theme');
if (theme) document.documentElement.dataset.theme = theme;
$('theme').addEventListener('click', () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'light' : 'dark';
  localStorage.setItem('theme', document.documentElement.dataset.theme);
  drawMap();
});
start();
