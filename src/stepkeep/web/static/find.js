// A text in the messages, tags, metadata and states of a session.

import { useState } from "preact/hooks";
import { useAnswer } from "stepkeep/data";
import { Answered, Empty, When, Word, address, checkpointAddress, go, html, useTitle } from "stepkeep/parts";
import { clean, count } from "stepkeep/text";
import { SessionHead } from "stepkeep/timeline";

export function Find({ session, params }) {
  useTitle(`Find in ${session}`);
  const wanted = params.get("text") || "";
  const [text, setText] = useState(wanted);
  const answer = useAnswer("find", { key: session, text: wanted }, { skip: !wanted });
  const submit = (event) => {
    event.preventDefault();
    go(address(["s", session, "find"], { text: event.currentTarget.elements.text.value }));
  };
  return html`
    <${SessionHead} session=${session} tab="find" />
    <form class="filters" role="search" onSubmit=${submit}>
      <input type="search" name="text" value=${text} aria-label="Find in messages, tags, metadata and states"
        placeholder="Find in messages, tags, metadata and states"
        onInput=${(event) => setText(event.currentTarget.value)} />
      <button type="submit">Find</button>
    </form>
    ${
      wanted &&
      html`
      <${Answered} answer=${answer}>
        ${(found) =>
          found.matches.length === 0
            ? html`<${Empty} title="Not found"><p>Nothing in this session contains this text.</p><//>`
            : html`
            <p class="faint" role="status">${count(found.matches.length, "place")}${found.has_more ? ", and more"
              : ""}, each where it appeared, oldest first</p>
            <ol class="found">${found.matches.map((match, at) => html`<${Match} key=${at} session=${session}
              match=${match} />`)}</ol>`}
      <//>`
    }`;
}

const Match = ({ session, match }) => html`
  <li>
    <a href=${checkpointAddress(session, match.checkpoint.id)}>${match.checkpoint.seq}</a> <${When}
      time=${match.checkpoint.time} />
    ${match.path ? html`<code><bdi>${clean(match.path)}</bdi>
      </code>` : html`<span class="faint">${match.where}</span>`}
    <p class="around"><${Word}>${match.before}<//><mark><${Word}>${match.text}<//></mark><${Word}>${match.after}<//>
      </p>
  </li>`;
