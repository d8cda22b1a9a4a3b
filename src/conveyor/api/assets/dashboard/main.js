// The frame around the pages: who is signed in, and which page the address names.

import { html, render, useEffect, useState } from "./preact.js";
import { get, key, signInByDefault, whenSignedOut } from "./api.js";
import { Overlays, Problem, link } from "./ui.js";
import { Jobs } from "./pages/jobs.js";
import { SignIn } from "./pages/sign-in.js";

// Pages other than the first are loaded when they are opened.
const LATER = {
  jobs: async () => (await import("./pages/job.js")).Job,
  submit: async () => (await import("./pages/submit.js")).Submit,
  operators: async () => (await import("./pages/operators.js")).Operators,
};

function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  return { parts: decoded(path), query: Object.fromEntries(new URLSearchParams(query)) };
}

function decoded(path) {
  try {
    return path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return [path]; // such as `jobs/100%`, which names no page
  }
}

function useRoute() {
  const [route, setRoute] = useState(parse(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function Page({ route }) {
  const [name] = route.parts;
  const [page, setPage] = useState({});
  useEffect(() => {
    if (!Object.hasOwn(LATER, name)) return undefined;
    let isCurrent = true;
    LATER[name]().then(
      (component) => isCurrent && setPage({ name, component }),
      (error) => isCurrent && setPage({ name, error }),
    );
    return () => {
      isCurrent = false;
    };
  }, [name]);
  if (!name) return html`<${Jobs} query=${route.query} />`;
  if (!Object.hasOwn(LATER, name)) return html`<p class="notice">There is no such page. <a href="#/">All jobs</a></p>`;
  if (page.name !== name) return html`<p class="loading">Loading…</p>`;
  if (page.error) return html`<${Problem} error=${page.error} /><p><button onClick=${() => location.reload()}>Reload</button></p>`;
  return html`<${page.component} key=${route.parts[1]} route=${route} />`;
}

function App() {
  const route = useRoute();
  const [signedIn, setSignedIn] = useState(signInByDefault);
  const [scopes, setScopes] = useState([]);
  const isOperator = signedIn && scopes.includes("operator");
  const signOut = () => {
    key.clear();
    setSignedIn(false);
  };
  useEffect(() => whenSignedOut(signOut), []);
  useEffect(() => {
    let isCurrent = true;
    setScopes([]);
    // A failure is not shown here: the call of the page that is open fails too.
    if (signedIn) get("/caller").then((found) => isCurrent && setScopes(found.scopes), () => {});
    return () => {
      isCurrent = false;
    };
  }, [signedIn]);
  // Pages announce themselves by their heading: the focus must not stay on a link that is gone.
  useEffect(() => document.querySelector("main")?.focus(), [route.parts.slice(0, 2).join("/")]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      document.querySelector("main").focus();
    }}>Skip to content</a>
    <header class="top">
      <a class="brand" href="#/"><img src="assets/icon.svg" alt="" width="24" height="24" /> Conveyor</a>
      <nav aria-label="Main">
        ${signedIn && html`<a href="#/" aria-current=${route.parts.length ? null : "page"}>Jobs</a>`}
        ${isOperator && html`<a href=${link("operators")} aria-current=${route.parts[0] === "operators" ? "page" : null}>Operators</a>`}
        <a href="docs">API</a>
      </nav>
      ${signedIn && html`
        <button class="quiet" onClick=${signOut}>${key.isDefault() ? "Change key" : "Sign out"}</button>
        <a class="button primary" href=${link("submit")}>New job</a>`}
    </header>
    <main id="main" tabindex="-1">
      ${!signedIn && html`<${SignIn} done=${() => setSignedIn(true)} />`}
      ${signedIn && html`<${Page} route=${route} />`}
    </main>
    ${isOperator && html`<footer class="foot"><a href="docs">API documentation</a></footer>`}
    <${Overlays} />`;
}

render(html`<${App} />`, document.getElementById("app"));
