// Adds the calls that end, and the routes that change, to the first page. Without this script the
// page shows them when it is reloaded.
"use strict";
(() => {
  const ROWS_MAX = 50;
  const RETRY_MS = 30_000;
  const section = document.getElementById("live");
  const calls = document.getElementById("live-calls");
  const routes = document.getElementById("live-routes");
  const status = document.getElementById("live-status");
  const pause = document.getElementById("live-pause");
  const heads = Array.from(section.querySelectorAll("thead th"));
  let after = section.dataset.after;
  let stream = null;
  let retry = 0;
  let lost = 0;

  function say(text) {
    const missing = lost > 0 ? ` ${lost} events are not shown: they came too fast.` : "";
    if (status.textContent !== text + missing) {
      status.textContent = text + missing;
    }
  }

  function addFirst(list, item) {
    list.prepend(item);
    while (list.children.length > ROWS_MAX) {
      list.lastElementChild.remove();
    }
  }

  function addCall(cells) {
    document.getElementById("live-none")?.remove();
    const row = document.createElement("tr");
    cells.slice(0, heads.length).forEach((text, at) => {
      const cell = document.createElement(at === 0 ? "th" : "td");
      if (at === 0) {
        cell.scope = "row";
      }
      cell.className = heads[at].className;
      cell.textContent = text;
      row.append(cell);
    });
    addFirst(calls, row);
  }

  function on(name, act) {
    stream.addEventListener(name, (event) => {
      after = event.lastEventId || after;
      act(JSON.parse(event.data));
    });
  }

  function open() {
    clearTimeout(retry);
    stream = new EventSource(`/live?after=${encodeURIComponent(after)}`);
    stream.addEventListener("open", () => say("Live: calls appear as they end."));
    stream.addEventListener("error", () => {
      // A browser tries again by itself, unless it was refused.
      if (stream?.readyState === EventSource.CLOSED) {
        say("Not live at the moment. Reload the page if this stays.");
        retry = setTimeout(open, RETRY_MS);
      } else {
        say("The connection has ended. Trying again.");
      }
    });
    on("call", (data) => addCall(data.cells));
    on("route", (data) => {
      const item = document.createElement("li");
      item.textContent = data.text;
      document.getElementById("live-no-route")?.remove();
      addFirst(routes, item);
    });
    on("lost", (data) => {
      lost += data.lost;
      say("Live: calls appear as they end.");
    });
  }

  function close() {
    clearTimeout(retry);
    stream?.close();
    stream = null;
  }

  pause.addEventListener("click", () => {
    if (stream === null) {
      pause.textContent = "Pause";
      open();
    } else {
      close();
      pause.textContent = "Go on";
      say("Paused.");
    }
  });
  // A page that is left gives its place to others; one that is shown again goes on.
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => {
    if (event.persisted && stream === null && pause.textContent === "Pause") {
      open();
    }
  });
  pause.hidden = false;
  open();
})();
