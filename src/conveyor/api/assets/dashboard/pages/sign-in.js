import { html, useState } from "../preact.js";
import { accepts, key } from "../api.js";
import { Problem, useTitle } from "../ui.js";

export function SignIn({ done }) {
  useTitle("Sign in");
  const [value, setValue] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      const given = value.trim();
      if (!(await accepts(given))) throw new Error("The service does not accept this key.");
      key.set(given);
      done();
    } catch (problem) {
      setError(problem);
    }
  };
  return html`
    <form class="card sign-in" onSubmit=${submit}>
      <h1>Sign in</h1>
      <p class="muted">Use an API key of this service. You see the jobs of its owner.</p>
      <label class="field"><span>API key</span>
        <input type="password" autocomplete="off" required value=${value} onInput=${(event) => setValue(event.target.value)} />
      </label>
      <${Problem} error=${error} />
      <button class="primary">Sign in</button>
      <p class="muted small">The key is kept in this tab until you close it or sign out.</p>
    </form>`;
}
