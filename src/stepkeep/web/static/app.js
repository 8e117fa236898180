// The frame of all pages: where one is, what one can go to, and whether the store is there.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Checkpoint, ValueLog } from "stepkeep/checkpoint";
import { Compare } from "stepkeep/compare";
import { isFile, startPage, watch } from "stepkeep/data";
import { Find } from "stepkeep/find";
import { Empty, html } from "stepkeep/parts";
import { Run, Runs } from "stepkeep/runs";
import { Sessions } from "stepkeep/sessions";
import { Store } from "stepkeep/store";
import { Events, Retention, SessionTimeline } from "stepkeep/timeline";

function place() {
  const [path, query = ""] = (window.location.hash || startPage).replace(/^#\/?/, "").split("?");
  let segments = [];
  try {
    segments = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    segments = ["?"];
  }
  return { segments, params: new URLSearchParams(query) };
}

function page({ segments: [first, key, kind, one, two], params }) {
  if (first === undefined) return html`<${Sessions} params=${params} />`;
  if (first === "runs" && key === undefined) return html`<${Runs} params=${params} />`;
  if (first === "store" && key === undefined) return html`<${Store} />`;
  if (first === "s" && key !== undefined) {
    if (kind === undefined) return html`<${SessionTimeline} key=${key} session=${key} params=${params} />`;
    if (kind === "c" && one)
      return html`<${Checkpoint} key=${`${key}/${one}`} session=${key} checkpoint=${one} params=${params} />`;
    if (kind === "compare" && two) return html`<${Compare} session=${key} older=${one} newer=${two} />`;
    if (kind === "find") return html`<${Find} session=${key} params=${params} />`;
    if (kind === "log") return html`<${ValueLog} session=${key} params=${params} />`;
    if (kind === "run") return html`<${Run} session=${key} />`;
    if (kind === "events") return html`<${Events} session=${key} />`;
    if (kind === "retention") return html`<${Retention} session=${key} />`;
  }
  return html`<h1 tabindex="-1" class="visually-hidden">Not found</h1>
    <${Empty} title="There is no such page"><p><a href="#/">All sessions</a></p><//>`;
}

function useTheme() {
  const kept = () => {
    try {
      return window.localStorage.getItem("stepkeep-theme") || "";
    } catch {
      return "";
    }
  };
  const [theme, setTheme] = useState(kept);
  useEffect(() => {
    document.documentElement.style.colorScheme = theme || "light dark";
    try {
      window.localStorage.setItem("stepkeep-theme", theme);
    } catch {
      // a page from a file may have no storage
    }
  }, [theme]);
  return [theme, () => setTheme({ "": "dark", dark: "light", light: "" }[theme])];
}

function App() {
  const [where, setWhere] = useState(place);
  const [isAway, setAway] = useState(false);
  const [theme, nextTheme] = useTheme();
  const main = useRef(null);
  const isFirst = useRef(true);
  useEffect(() => {
    const moved = () => setWhere(place());
    window.addEventListener("hashchange", moved);
    moved(); // the address may have changed before anybody listened
    return () => window.removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => watch((keys) => setAway(keys === null)), []);
  const path = where.segments.join("/");
  useEffect(() => {
    if (!isFirst.current) {
      window.scrollTo(0, 0);
      main.current.querySelector("h1")?.focus({ preventScroll: true });
    }
    isFirst.current = false;
  }, [path]);
  const section = ["runs", "store"].includes(where.segments[0]) ? where.segments[0] : "sessions";
  const link = (name, text, to) =>
    html`<a href=${to} aria-current=${section === name ? "page" : undefined}>${text}</a>`;
  return html`
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      main.current.querySelector("h1")?.focus();
    }}>Skip to the page</a>
    <header class="top">
      <a class="brand" href=${isFile ? startPage : "#/"}><${Logo} />Stepkeep</a>
      ${
        !isFile &&
        html`<nav aria-label="Main">
        ${link("sessions", "Sessions", "#/")}${link("runs", "Runs", "#/runs")}${link("store", "Store", "#/store")}
      </nav>`
      }
      <span class="spring" />
      ${
        isFile
          ? html`<span class="state">exported</span>`
          : html`<span class="state ${isAway ? "is-away" : "is-live"}" role="status">
            <span class="dot" aria-hidden="true" />${isAway ? "store unreachable" : "live"}</span>`
      }
      <button type="button" class="plain" onClick=${nextTheme}
        aria-label="Theme: ${theme || "as the system"}">${{ "": "◐", dark: "☾", light: "☀" }[theme]}</button>
    </header>
    <main id="main" ref=${main}>${page(where)}</main>`;
}

const Logo = () => html`
  <svg viewBox="0 0 16 16" width="20" height="20" aria-hidden="true">
    <path d="M5 4v8M5 8.5c0-2.5 6 0 6-4" fill="none" stroke="currentColor" stroke-width="1.6" />
    <circle cx="5" cy="3" r="2" fill="currentColor" /><circle cx="5" cy="13" r="2" fill="currentColor" />
    <circle cx="11" cy="3" r="2" class="logo-branch" />
  </svg>`;

render(html`<${App} />`, document.getElementById("app"));
