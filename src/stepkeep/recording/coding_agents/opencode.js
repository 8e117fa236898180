// Saves where the work of opencode stands, and its files, with Stepkeep. Installed by `stepkeep hooks install`.
import { spawnSync } from "node:child_process"

const program = {program}
const options = {options}

const tell = (directory, event, session_id, fields) => {
  if (!session_id) return
  const input = JSON.stringify({ session_id, cwd: directory, hook_event_name: event, ...fields })
  const [command, ...words] = program
  spawnSync(command, [...words, event, ...options], { input, cwd: directory, timeout: 10000 })
}

export const Stepkeep = async ({ directory }) => ({
  "chat.message": async (input, output) => {
    const prompt = (output.parts ?? []).map((part) => part.text ?? "").join("\n")
    tell(directory, "chat.message", input.sessionID ?? output.message?.sessionID, { prompt })
  },
  "tool.execute.before": async (input, output) =>
    tell(directory, "tool.execute.before", input.sessionID, { tool_name: input.tool, tool_input: output.args }),
  "tool.execute.after": async (input, output) =>
    tell(directory, "tool.execute.after", input.sessionID, { tool_name: input.tool, tool_input: input.args ?? output.args ?? {} }),
  event: async ({ event }) => {
    const session = event.properties?.sessionID ?? event.properties?.info?.id
    if (["session.idle", "session.compacted", "session.deleted"].includes(event.type)) tell(directory, event.type, session, {})
  },
})
