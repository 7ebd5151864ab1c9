// Package routing says which of several engines a request should go to, so that it finds its prefix in the engine's
// own cache and no engine drowns in what everybody asks for.
//
// A request has two engines to choose from, by two draws of its anchor, a block near the head of its prompt. All
// requests of one conversation have the same two, whoever is asked, and an engine that comes or goes moves its own
// share of anchors and no more. Of the two the one that holds more of the prompt is taken, as long as the first token
// is expected within the request's goal; else the one that is expected to give it first; and where both would miss the
// goal, the one of all engines that would (DualMap: two mappings, affinity first, load when the goal is at risk, a way
// out of hotspots).
//
// An anchor that very many requests share, as those of one system prompt do, would send all of them to two engines. So
// the anchor of such requests lies deeper: at the block after the first one whose requests are few enough (hot.go).
//
// What an engine holds is what it was sent before, as far as its cache reaches (held.go): an estimate, which costs
// time where it is wrong, and nothing else.
//
// Nothing here waits, reads a clock or asks a store: the same questions in the same order have the same answers.
package routing
