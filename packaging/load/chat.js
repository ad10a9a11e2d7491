// k6: chats of several keys, whole, streamed and named, side by side. K6 ends each call before it
// leaves, so all of them can be counted. LOAD_URL is the base URL, LOAD_KEYS a file with a key on
// each line, LOAD_CALLS the calls of each kind (500). See docs/operate/load-tests.md.
import http from 'k6/http';
import { check } from 'k6';
import { Counter } from 'k6/metrics';
import { scenario } from 'k6/execution';

const keys = open(__ENV.LOAD_KEYS).trim().split('\n');
const calls = Number(__ENV.LOAD_CALLS || 500);
const charged = new Counter('charged_nano');
const run = Date.now();

const kind = (exec) => ({ executor: 'shared-iterations', exec, vus: 8, iterations: calls, maxDuration: '60s' });

export const options = {
  scenarios: { whole: kind('whole'), streamed: kind('streamed'), named: kind('named') },
  thresholds: { checks: ['rate==1'] },
};

function call(more, head) {
  const number = String(scenario.iterationInTest).padStart(12, '0');
  const messages = [{ role: 'user', content: `${number} How much is two and two?` }];
  const body = JSON.stringify({ model: 'lmb-5.5', ...more, messages });
  const headers = { 'content-type': 'application/json', ...head };
  headers.authorization = `Bearer ${keys[scenario.iterationInTest % keys.length]}`;
  return http.post(`${__ENV.LOAD_URL}/chat/completions`, body, { headers });
}

function whole(head) {
  const reply = call({}, head);
  check(reply, { 'whole: 200 with an answer': (r) => r.status === 200 && r.json('choices.0.message.content') });
  charged.add(Number(reply.headers['X-Gateway-Charged-Nano'] || 0));
  return reply;
}

const plain = () => whole({});
export { plain as whole };

export function streamed() {
  const reply = call({ stream: true, stream_options: { include_usage: true } }, {});
  check(reply, { 'streamed: 200 to the end': (r) => r.status === 200 && r.body.includes('data: [DONE]') });
}

// Each call twice: the second gets the answer of the first, and costs nothing.
export function named() {
  const head = { 'idempotency-key': `${run}-${scenario.iterationInTest}` };
  const [first, again] = [whole(head), call({}, head)];
  check(again, { 'named: the repeat is the same': (r) => r.status === 200 && r.body === first.body });
}
