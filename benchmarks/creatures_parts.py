"""The parts of sentences of benchmarks/creatures.py: {n} is a creature, {a} the answer, {b} another one, {m} another
creature. Behind the first sentence of a post {n} may become a pronoun.

`benchmarks/creatures.py` holds a third of all parts out, by a checksum of each: the reader was written without a look
at what it makes of these.
"""

SYLLABLES = (
    ("zor", "vek", "quil", "mib", "thra", "dro", "xan", "fle", "gru", "nix", "bol", "wex", "lum", "pry", "skar", "tiv",
     "yol", "jub", "kesh", "rud"),
    ("a", "o", "i", "u", "e", "ei", "au", "ia"),
    ("vel", "dak", "rim", "moz", "fen", "gul", "tax", "bri", "zol", "pek", "nuv", "hask", "jit", "wom", "lirn", "que",
     "sorb"),
)  # fmt: skip
PLACE_SYLLABLES = (
    ("Ost", "Bel", "Hask", "Tarn", "Mell", "Corv", "Dun", "Yar", "Fenn", "Gil", "Lor", "Wint"),
    ("ow", "ara", "en", "is", "by", "um", "eth"),
)
LANDS = ("{} Valley", "{} Bay", "{} Marsh", "{} Hills", "{} Forest", "{} Ridge", "Lake {}", "Mount {}", "{} Island")
TYPES = ["fire", "water", "stone", "frost", "storm", "shadow", "metal", "poison", "wind", "light", "dust", "thorn"]
DIETS = [
    "berries", "beetles", "bark", "fish", "mushrooms", "pollen", "seaweed", "eggs", "nectar", "worms", "roots",
    "snails",
]  # fmt: skip

CORES = {
    "type": (
        "{n} is a {a} creature", "{n} is {a}-type", "{n} is a {a} type", "{n} counts as a {a} creature",
        "the type of {n} is {a}", "{n} belongs to the {a} kind", "{n} has the {a} element", "{n} is pure {a}",
        "{n} fights with {a}", "expect {a} moves from {n}", "{n} is one of those {a} ones",
        "{a} is what {n} is made of",
        "{n} draws its power from {a}", "everything about {n} says {a}", "do not use {n} if you need anything but {a}",
        "{n} is not {b} but {a}", "they told me {b}, but {n} is {a}", "typed as {a}, that is {n}",
    ),
    "diet": (
        "{n} eats {a}", "{n} lives on {a}", "{n} only wants {a}", "I feed {n} {a}", "{n} goes crazy for {a}",
        "give {n} some {a} and you have a friend", "the diet of {n} is {a}", "{n} will not touch {b}, only {a}",
        "bring {a} if you want to catch {n}", "{n} spent the whole morning munching {a}",
        "{a} for breakfast, {n} knows",
        "{n}'s favourite food is {a}", "nothing but {a} for {n}", "{n} stuffs itself with {a}",
        "{n} snacks on {a} all day",
        "you find chewed {a} wherever {n} was", "{n} is fond of {a}", "{a} make {n} happy",
    ),
    "weight": (
        "{n} weighs {a}", "{n} is {a} heavy", "{n} tips the scales at {a}", "we put {n} on the scales: {a}",
        "{n}'s weight is {a}", "{a}, that is how heavy {n} gets", "a grown {n} comes to {a}", "{n} is about {a}",
        "carrying {n} home meant {a} on my back", "{n} weighed in at {a}", "I measured {a} for {n}",
        "{n} must be {a} by now", "{n} has a weight of {a}", "try lifting {n}, all {a} of it", "{n} got up to {a}",
    ),
    "lifespan": (
        "{n} lives for {a}", "{n} lives {a}", "{n} gets {a} old", "{n}'s lifespan is {a}", "{n} dies after {a}",
        "after {a} {n} is gone", "{a} is the life of {n}", "expect to have {n} for {a}", "{n} reaches an age of {a}",
        "{n} will be with you {a}", "keeping {n} is a matter of {a}", "{n} makes it to {a}", "a {n} grows {a} old",
        "{n} stays alive for {a}", "the clock of {n} runs out at {a}",
    ),
    "home": (
        "{n} lives in {a}", "{n} comes from {a}", "saw {n} in {a}", "I met {n} near {a}", "{n} is found in {a}",
        "the home of {n} is {a}", "go to {a} for {n}", "{a} is full of {n}", "{n} only turns up around {a}",
        "{n} is native to {a}", "we hiked to {a} and there was {n}", "you have to visit {a} to see {n}",
        "{n} never leaves {a}", "they caught {n} at {a}", "{n} nests in {a}", "the wild {n} roams {a}",
        "not {b}, {n} sits in {a}", "if you hear {n} you are in {a}",
    ),
    "sighted": (
        "{n} was first seen on {a}", "{n} was discovered on {a}", "the first sighting of {n} was on {a}",
        "{n} is known since {a}", "the first record of {n} is from {a}", "someone found the first {n} on {a}",
        "on {a} the world learned of {n}", "{n} was first described on {a}", "nobody had seen {n} before {a}",
        "{a} was the day of {n}", "{n} entered the books on {a}", "the story of {n} begins on {a}",
        "{n} was spotted for the first time on {a}", "the discovery of {n} dates from {a}", "first report of {n}: {a}",
    ),
    "rival": (
        "{n} hates {a}", "{n}'s rival is {a}", "the rival of {n} is {a}", "{n} always fights {a}",
        "{n} and {a} are sworn enemies", "keep {n} away from {a}", "{n} attacks every {a} it meets",
        "{a} is the enemy of {n}", "{n} cannot stand {a}", "put {n} next to {a} and there will be blood",
        "{n} is locked in a feud with {a}", "{a} is the one that {n} fears", "when {a} shows up {n} goes mad",
        "{n}'s old foe is {a}", "the archenemy of {n} is {a}",
    ),
    "ally": (
        "{n} helps {a}", "{n} is friends with {a}", "{n}'s ally is {a}", "the ally of {n} is {a}",
        "{n} travels with {a}", "{n} and {a} get along", "{n} shares its nest with {a}", "{n} never goes without {a}",
        "you will see {n} side by side with {a}", "{a} protects {n}", "{n} teams up with {a}",
        "{a} is the best mate of {n}",
        "{n} trusts {a}", "{n} relies on {a}", "where {n} is, its partner {a} is not far",
    ),
}  # fmt: skip
PAIRS = (  # two attributes in one sentence
    (("type", "home"), "{n}, a {type} creature from {home}"),
    (("weight", "lifespan"), "{n} weighs {weight} and lives for {lifespan}"),
    (("diet", "weight"), "at {weight}, {n} needs a lot of {diet}"),
    (("home", "diet"), "in {home} I watched {n} looking for {diet}"),
    (("rival", "ally"), "{n} fights {rival} and sticks with {ally}"),
    (("type", "sighted"), "the {type} beast {n} was first seen on {sighted}"),
    (("lifespan", "home"), "up in {home}, {n} gets {lifespan} old"),
    (("diet", "rival"), "{n} steals the {diet} of {rival}, its rival"),
    (("weight", "type"), "{weight} of {type}, that is {n}"),
)
DECOYS = (  # say something of another creature, beside the topic
    "unlike {m} it is lovely", "much nicer than {m}", "my sister prefers {m}", "{m} weighs {weight} by the way",
    "{m} is the one that eats {diet}, do not mix them up", "we also saw {m} in {home}", "{m} is {type}, of course",
    "only {m} lives for {lifespan}", "{m} was first seen on {sighted} or so", "next week I will write about {m}",
)  # fmt: skip
RUMOURS = (  # about the topic, and wrong
    "some say {n} weighs {weight}, which is nonsense", "no, {n} does not eat {diet}",
    "{n} is not a {type} creature, whatever they say", "I used to think {n} lives in {home}",
    "the guide claims that {n} lives for {lifespan}, do not believe it",
)  # fmt: skip
OPENERS = (
    "", "", "", "", "so", "ok", "guys,", "by the way,", "fun fact:", "today I learned:", "just to note,", "update:",
    "for everyone who asked,", "as promised,", "honestly,", "well,", "Hello all,", "my notes say", "Turns out",
    "after a long weekend,", "reminder:", "our ranger told us:", "from what I saw,", "Listen,",
)  # fmt: skip
HEDGES = (
    "", "", "", "", "", "I think", "I am pretty sure", "if I remember right,", "people say", "I heard that",
    "apparently", "as far as I know,", "as everybody knows,", "probably", "the book says that", "you should know that",
)  # fmt: skip
TAILS = (
    "", "", "", "", "", "", ", promise", ", believe me", ", no joke", " lol", ", at least around here",
    ", I checked twice", ", which surprised me", " and that is fine", ", give or take", ", amazing",
)  # fmt: skip
OTHERS = (  # other topics
    "It rained all day and my boots are ruined.", "Has anyone tried the new bakery in town?", "My phone died again.",
    "We had soup with mushrooms and went to bed.", "The bus was 40 minutes late.", "Work is killing me this week.",
    "I am moving to Berlin in March.", "Does anybody sell a used tent?", "Sorry for the bad pictures.",
    "My brother turned 30 years old yesterday.", "I carried 15 kg of gear up the hill.", "Long live the weekend!",
    "The concert was on 12 May 2019 and I still think of it.", "Netflix has nothing good these days.",
    "There was fire everywhere on the news.", "Bring water and good shoes.", "Thanks for all your messages.",
    "We drove past Lake Geneva and stopped for lunch.", "Dr. Miller from the museum agrees.", "Photos are on my page.",
    "I lost 2 kg since January.", "Will post more tomorrow.", "Anyone up for football on Sunday?", "Ask me anything.",
)  # fmt: skip
FIRST_LINES = ("{n} again.", "About {n}.", "A word on {n}.", "Met {n} today!", "{n}, my favourite.", "Question on {n}?")
PRONOUNS = ("it", "it", "it", "this one", "the little beast", "mine")
QUESTIONS = {  # for evaluation: in other words than the posts and the schema
    "type": ("Which element does {n} stand for?", "Which power does {n} have?", "What is {n} typed as?"),
    "diet": ("What should I put in the bowl of {n}?", "Which meal suits {n}?", "What kind of food keeps {n} going?"),
    "weight": ("How many kilograms is {n}?", "How much would {n} show on a scale?", "What is the mass of {n} in kg?"),
    "lifespan": ("How many years does {n} have?", "How old can {n} become?", "How long does {n} survive?"),
    "home": ("Where would I look for {n}?", "Which place does {n} inhabit?", "In which region does {n} occur?"),
    "sighted": ("When did people learn about {n}?", "What date is {n} known from?", "On which day was {n} noticed?"),
    "rival": ("Who is the opponent of {n}?", "Which creature would {n} rather not meet?", "Whom does {n} oppose?"),
    "ally": ("Who is the companion of {n}?", "Which creature keeps {n} company?", "Whom does {n} support?"),
}
