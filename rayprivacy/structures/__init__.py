"""Parse trees and JSON as text: names, grammars, and masks for decoding."""
