"""English words that give gender away, and common first names of either gender.

For the delete-tokens baseline and token-set judges, on the data sets whose attribute is gender.
"""

_PRONOUNS = "he him his himself she her hers herself"
_TITLES = "mr mrs ms miss mister sir madam madame ma'am lady ladies lord lords gentleman gentlemen dame"
_PEOPLE = "man men woman women boy boys girl girls guy guys male males female females lad lads lass lasses"
_KIN = (
    "father fathers mother mothers dad dads mom moms mum mums daddy mommy mummy papa mama son sons daughter daughters "
    "brother brothers sister sisters husband husbands wife wives uncle uncles aunt aunts nephew nephews niece nieces "
    "grandfather grandfathers grandmother grandmothers grandpa grandma grandson grandsons granddaughter "
    "granddaughters stepfather stepmother stepson stepdaughter stepbrother stepsister godfather godmother widow "
    "widows widower widowers bride brides bridegroom boyfriend boyfriends girlfriend girlfriends fiance fiancee "
    "fiancé fiancée fatherhood motherhood brotherhood sisterhood maternal paternal maternity paternity"
)
_ROLES = (
    "king kings queen queens prince princes princess princesses duke duchess emperor empress baron baroness count "
    "countess hero heroes heroine heroines actor actors actress actresses waiter waitress waiters waitresses host "
    "hostess hostesses steward stewardess businessman businesswoman businessmen businesswomen chairman chairwoman "
    "chairmen chairwomen spokesman spokeswoman congressman congresswoman policeman policewoman salesman saleswoman "
    "sportsman sportswoman sportsmen sportswomen cameraman fireman fisherman monk monks nun nuns priest priestess "
    "schoolboy schoolgirl cowboy cowgirl ballerina ballerinas diva divas alumna alumnae alumnus landlord landlady "
    "midwife"
)
_BODY = "pregnant pregnancy feminine masculine femininity masculinity feminist feminism beard bearded moustache"
GENDER_WORDS = frozenset(" ".join((_PRONOUNS, _TITLES, _PEOPLE, _KIN, _ROLES, _BODY)).split())
"""Pronouns, titles, kinship, roles with a form for each gender and similar, in lower case; first names apart."""

FEMALE_NAMES = tuple(
    "Alice Amanda Amy Andrea Angela Anna Barbara Betty Brenda Carol Caroline Catherine Christine Clara Cynthia Deborah "
    "Diana Donna Dorothy Elena Elizabeth Emily Emma Hannah Helen Isabel Jane Janet Jennifer Jessica Joan Judith Julia "
    "Karen Kathleen Laura Linda Lisa Louise Lucy Margaret Maria Marie Martha Mary Megan Melissa Michelle Nancy Nicole "
    "Olivia Pamela Patricia Rachel Rebecca Ruth Sandra Sarah Sophia Stephanie Susan Teresa Victoria Virginia".split()
)
"""Common first names of women."""
MALE_NAMES = tuple(
    "Aaron Adam Alan Albert Alexander Andrew Anthony Arthur Benjamin Brian Carl Charles Christopher Daniel David "
    "Dennis Donald Douglas Edward Eric Ethan Gary George Gregory Harold Henry Howard Jacob James Jason Jeffrey Jeremy "
    "John Jonathan Joseph Joshua Keith Kenneth Kevin Larry Lawrence Louis Martin Matthew Michael Nathan Nicholas "
    "Oliver Patrick Paul Peter Philip Richard Robert Roger Ronald Samuel Scott Simon Stephen Steven Thomas Timothy "
    "Vincent William".split()
)
"""Common first names of men."""
