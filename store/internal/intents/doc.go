// Package intents is what the catalog promises that the devices' logs will say: of deletions, purges and namespaces.
//
// A commit that decides one of these carries its log entries along as a row, an intent. Then the entries are written to
// the logs, and the row goes. What a crash or a full store keeps from the logs stays an intent: List has them, for who
// tries again. A rebuild from the devices alone does not know what only an intent says.
package intents
