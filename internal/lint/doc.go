// Package lint keeps, as tests, the rules about the source that no compiler checks: which package may import
// which, and which idioms have no place here. Each rule stands with its reason in the table that the tests walk.
package lint
