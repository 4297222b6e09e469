/**
 * The dialog with a chat's settings.
 */

import { byId } from "./dom.js"

const SAMPLING = ["temperature", "top_p", "seed"]

/**
 * @param {Settings|null} settings
 * @param {(settings: Settings) => boolean} onSave  Says whether the server was told.
 */
export function openSettings(settings, onSave) {
	const dialog = byId("settings")
	fill(settings)
	byId("settings-reset").onclick = () => fill(null)
	byId("settings-form").onsubmit = (event) => {
		event.preventDefault()
		if (onSave(read())) dialog.close()
		else byId("settings-problem").textContent = "There is no connection right now. Try again soon."
	}
	dialog.showModal()
}

function fill(settings) {
	byId("settings-problem").textContent = ""
	byId("instructions").value = settings?.instructions ?? ""
	const limit = settings?.max_output_tokens ?? "inf"
	byId("max_output_tokens").value = limit === "inf" ? "" : limit
	for (const name of SAMPLING) byId(name).value = settings?.repartee[name] ?? ""
}

/** @returns {Settings} */
function read() {
	const number = (name) => (byId(name).value === "" ? null : Number(byId(name).value))
	return {
		instructions: byId("instructions").value,
		max_output_tokens: number("max_output_tokens") ?? "inf",
		repartee: Object.fromEntries(SAMPLING.map((name) => [name, number(name)])),
	}
}
