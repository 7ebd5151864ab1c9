// Package gate lets calls into a store until it closes, and tells whoever closes it when the last has left.
//
// A call may be made within another, as a progress callback does: what waits at a gate that is being shut is only who
// shuts it. Calls that only wait for drives (sessions) do not hold the gate while they wait.
package gate
