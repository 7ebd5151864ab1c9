// Package hostile plays clients that do their worst to a real server, and judges what that did to everybody else.
//
//	players ──▶ raw sockets: anything, at any pace, ended anywhere ──┐
//	                                                                 ├──▶ Server: wire, RESP, HTTP, on TCP and Unix sockets ──▶ Store
//	books   ──▶ honest clients of another tenant, all protocols ─────┘
//	oracles ──▶ look at the server before, meanwhile and afterwards
//
// A Player does one piece of mischief a call, drawn from the random numbers it is given; many are called at once. Books are honest clients that
// know every byte they stored and check what they read. An Oracle says what must hold: while they play, memory and
// descriptors stay within what the server may take; when all have gone, nothing of them is left.
//
// Run prints its seed and plays for a few seconds, or for as long as SKEP_HOSTILE_TIME says. SKEP_SEED sets the seed. A play that failed is named with its own
// seed: SKEP_HOSTILE_PLAY=player:seed plays it alone, again and again.
//
// A player that is added here is a type with Name and Play and a line in Players. It holds at most MaxPlayerBytes, opens
// connections by Target.Dial only, closes them, and returns when its context ends.
package hostile
